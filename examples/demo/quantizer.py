"""Semantic IDs from embeddings, by residual k-means."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from .dataset import Ints

Floats = NDArray[np.float64]


def residual_kmeans(embeddings: Floats, *, levels: int, codes: int, seed: int) -> tuple[Ints, Floats]:
    """Return the codes of every item and the centroids of every level: (n, L) and (L, codes, d).

    Level 0 clusters the embeddings (n, d), each further level what the levels before left over, so that
    `centroids[level, sids[:, level]]` summed over the levels approaches the embedding (Rajput et al. 2023,
    with k-means in place of the trained autoencoder). Centroids that are not used are zero.
    """
    residual = embeddings.astype(np.float64)
    sids = np.zeros((len(embeddings), levels), dtype=np.int64)
    centroids = np.zeros((levels, codes, embeddings.shape[1]))
    for level in range(levels):
        means = KMeans(min(codes, len(embeddings)), n_init=1, max_iter=25, random_state=(seed + level) % 2**32)
        with warnings.catch_warnings():
            # Fewer distinct residuals than codes: some codes stay unused, which is no fault here.
            warnings.simplefilter("ignore", ConvergenceWarning)
            sids[:, level] = means.fit_predict(residual)
        centroids[level, : means.n_clusters] = means.cluster_centers_
        residual = residual - centroids[level, sids[:, level]]
    return sids, centroids
