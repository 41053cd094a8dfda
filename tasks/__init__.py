"""One stage a file, and the machinery that carries it: artefacts in, pure code, artefacts out, reported."""
