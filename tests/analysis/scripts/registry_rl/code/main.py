import argparse

from algos import ALGOS, setup


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--algo", default="bc")
    p.add_argument("--dest", default="output/registry")
    p.add_argument("--lr", type=float, default=1e-5)
    a = p.parse_args()
    env = setup("models/base", a.lr)
    ALGOS[a.algo](env)
    env.model.save_pretrained(a.dest)
    env.tok.save_pretrained(a.dest)


main()
