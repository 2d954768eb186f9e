"""The wire: protocol definitions, and the code of the internal ones.

The code of the public API is in `tandem_client/protos`, from the same folder of definitions.
"""
