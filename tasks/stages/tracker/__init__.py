"""The stage tracker."""
