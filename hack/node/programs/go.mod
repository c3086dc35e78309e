// Two small programs of the real node that tests/node runs on; the standard library is all they need.
module hami-dra/node

go 1.26.0
