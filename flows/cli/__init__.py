"""The program `gradus`: its verbs and their options."""
