"""A job that fails by an exception of its own, three frames deep."""


def read_labels():
    return {}["the missing label"]


def main():
    read_labels()


main()
