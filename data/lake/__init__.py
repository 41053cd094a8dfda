"""The lake: artifacts, their manifests and schemas, SQL over them."""
