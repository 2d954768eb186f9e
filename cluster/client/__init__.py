"""What the command `tandem` adds to the client: the operator's calls and the terminal chat."""
