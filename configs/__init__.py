"""Named settings as YAML: protocols."""
