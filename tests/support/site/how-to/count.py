"""
Count
=====

Count to three.
"""

print([1, 2, 3])
