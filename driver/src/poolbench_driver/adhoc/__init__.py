"""One service, asked directly: the files of texts and vectors that go in and come out, and the requests between."""
