"""Pure: which prompt is next, and which cached prefix a sequence starts from."""
