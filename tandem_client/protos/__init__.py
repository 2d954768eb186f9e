"""The code generated from the public API's definitions in `protos/`."""
