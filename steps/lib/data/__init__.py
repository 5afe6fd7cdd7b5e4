"""From raw text to token shards. The only home of pyarrow, tokenizers and fastokens.

    source     what a source is: list it, open a file, fingerprint it
    reading    one file -> records: text, JSONL, Parquet; plain, gzip, zstd
    clean      one record -> a document, or a counted reason
    runs       documents -> files sorted by digest, bounded memory
    gather     plan pieces by bytes, read them in all processes, into runs
    docs       runs -> a docs folder: unique documents in digest order, by split and partition
    bpe        documents -> a byte-level BPE tokenizer
    encode     text -> ids: the fast encoder behind a parity check
    tokens     ids -> shards, and what a dataset's version is
    pool       one function over many tasks in several processes

steps.lib.loader reads the shards back, by byte ranges and with numpy alone.
"""
