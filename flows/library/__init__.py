"""The API of `import gradus`, on which the verbs of the command line are built: one function for each verb."""
