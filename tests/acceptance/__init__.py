"""The product as its users meet it: real servers, real sockets, real stores."""
