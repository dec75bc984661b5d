"""The systems of five papers that are no default here, a folder for each paper.

| folder | paper | kind |
| --- | --- | --- |
| `lfilter` | Yu, Li and Feng, CIKM 2015 | `boolean` |
| `ciq` | Chen, Cong, Cao and Tan, ICDE 2015 | `decay`, and as an opponent `topk` |
| `skyline` | Deng, Wang, Liu, Dustdar, Ranjan, Zomaya, Liu and Wang, 2022 | `skyline` |
| `skype` | Wang, Zhang, Zhang, Lin and Huang, VLDB Journal 2017 | `topk` |
| `dkm_sks` | Tsuruoka, Amagata, Nishio and Hara, 2020 | `knn` |

A folder has the system as its paper prints it and our variants of it. Its `__init__` says where every definition,
algorithm and figure of the paper is in this repository, also where that is a default engine or a router, and what the
paper leaves out. No folder imports another. An engine is imported when `--engine`, `--window-index` or `skyray bench`
names it (`matching.kinds`), and never otherwise. `docs/papers.md` has the measurements beside the papers' own.
"""
