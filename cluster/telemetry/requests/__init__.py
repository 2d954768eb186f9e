"""The request log as data: the row of a request, its stages, and the rows in memory and files."""
