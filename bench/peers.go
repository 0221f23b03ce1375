package main

func peers() []drainer { return nil }
