"""What every test may stand on: real servers, processes, a proxy, and the comparer that says what differs.

Nothing in here imports the product's encoders or decoders: a mistake there must not hide itself.
"""
