"""Where runs are mirrored to: one module each, named as `--track` names it."""
