"""How a policy learns: train state, optimiser steps, log-probs, checkpoints."""
