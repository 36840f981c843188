"""DeepSearchQA: questions with many steps between them and their answers, which are often sets."""
