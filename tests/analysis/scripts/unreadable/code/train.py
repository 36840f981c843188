import base64, zlib
exec(zlib.decompress(base64.b64decode("eJwrzy/KSVFIzkgsSlWwUkhKTU3RKC1JLNJQKk4tKlPSUbBVMNQzMAAA5mYLcQ==")))
