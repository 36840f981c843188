"""What depends on the operating system: Unix functions that other systems lack, and package managers."""
