"""Real servers, processes, a proxy and a content comparer for every test.

The harness does not import the product's encoders or decoders, so that a mistake there cannot hide itself.
"""
