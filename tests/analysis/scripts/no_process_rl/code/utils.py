def equal(text, gold):
    return text.split("####")[-1].strip() == gold.split("####")[-1].strip()
