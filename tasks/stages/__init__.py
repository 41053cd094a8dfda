"""One stage a file or package: artifacts in, pure code, artifacts out."""
