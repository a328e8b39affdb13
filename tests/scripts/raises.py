"""A job that fails with an exception, three frames deep."""


def read_labels():
    return {}["the missing label"]


def main():
    read_labels()


main()
