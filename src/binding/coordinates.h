// Coordinates of the tokens of a call, for rotations whose pairs turn by them.
#pragma once

#include <vector>

#include "relpos/scheme.h"
#include "values/token_positions.h"

namespace relpos {

// What follows from the positions of a call; null: there is no token.
Coordinates coordinates_at(const TokenPositions* positions, int64_t axes,
                           const TurnBy::CoordinateOf& coordinate);

// One coordinate, of queries and of keys.
Coordinates coordinates_at(const TokenPositions* positions, const Along::Coordinate& query,
                           const Along::Coordinate& key);

// Reads inputs [B, axes, Lq] and [B, axes, Lk], or [B, Lq] and [B, Lk].
Coordinates coordinates_given(const TensorView& queries, const TensorView& keys);

// One coordinate, of such a number of each token and its position.
Coordinates coordinates_read(const Coordinates& given, const TokenPositions* positions,
                             const Along& along);

// One more than the largest position of queries and keys; 0 where there is no token.
int64_t length_of(const TokenPositions& positions);
// The largest position of the queries; 0 where there is none.
int64_t last_query_of(const TokenPositions& positions);

}  // namespace relpos
