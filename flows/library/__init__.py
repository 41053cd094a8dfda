"""What `import gradus` offers, and the verbs of the command line stand on: a function for each of them."""
