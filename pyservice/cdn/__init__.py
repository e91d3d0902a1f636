"""CDN server of game sites and of objects with signed URLs. It never shares an origin with the API
or console.
"""
