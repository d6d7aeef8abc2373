"""Panels on pages that have no kernel: a browser's Python draws them."""
