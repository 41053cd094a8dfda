"""Disposable processes that judge completions."""
