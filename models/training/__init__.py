"""Training of a policy: train state, optimiser steps, log-probs, checkpoints."""
