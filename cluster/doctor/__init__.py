"""`tandem doctor`: whether this machine can serve a configuration, and what to change."""
