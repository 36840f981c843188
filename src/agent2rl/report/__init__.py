"""Reports, tables and exports, made from run directories alone."""
