"""One stage a file, and the machinery that carries it: artifacts in, pure code, artifacts out, reported."""
