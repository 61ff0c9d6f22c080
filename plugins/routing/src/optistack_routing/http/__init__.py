"""HTTP/1.1 as a relay needs it: heads in a strict grammar, exact ends of messages, and one connection of a server.

No parser library does this part. llhttp (httptools) says when a message has ended but not at which byte, and a relay
that forwards what it read must know; it also accepts line folding, which two servers read in two ways. The grammar here
is RFC 9112 without its obsolete parts, so what it lets through has one reading; the tests compare it with llhttp.
"""
