"""
Words
=====

A script that prints words.
"""

print("some words")
