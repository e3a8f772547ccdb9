/*
 * pq_kernel_template.h
 *		The kernels of pq_kernel.h for one instruction set.
 *
 * Included by pq_kernel.c once for each, with these macros set:
 *
 *	KERNEL(name)	name with the instruction set's suffix
 *	TARGET			function attribute
 *	LANES, VECTORS	floats of a vector; vectors of a panel's row
 *	ROWS			rows taken together: what the registers hold
 *	vf, vi			vectors of floats and of 32-bit integers
 *	V_...			operations, named after what they do
 *
 * ROWS x VECTORS accumulators stay in registers while the depth is walked.
 */

/* acc = init -/+ rows * panel: the sum over the depth, in ascending order. */
TARGET static inline __attribute__((always_inline)) void
KERNEL(tile)(const float *rows, size_t stride, uint32_t depth,
			 const float *panel, const int count, const bool subtract,
			 vf acc[ROWS][VECTORS])
{
	for (uint32_t k = 0; k < depth; k++)
	{
		vf column[VECTORS];

		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			column[v] =
				V_LOAD(panel + (size_t) k * NV_PANEL_COLUMNS + v * LANES);
		NV_UNROLL
		for (int r = 0; r < count; r++)
		{
			vf x = V_SET1(rows[r * stride + k]);

			NV_UNROLL
			for (int v = 0; v < VECTORS; v++)
				acc[r][v] = subtract ? V_FNMADD(x, column[v], acc[r][v])
									 : V_FMADD(x, column[v], acc[r][v]);
		}
	}
}

TARGET static inline __attribute__((always_inline)) void
KERNEL(nearest_rows)(const float *rows, size_t stride, uint32_t depth,
					 const float *panels, const float *half_norms,
					 const int count, uint8_t *codes, size_t code_stride,
					 float *score)
{
	vf best[ROWS];
	vi at[ROWS];
	vf acc[ROWS][VECTORS];

	NV_UNROLL
	for (int r = 0; r < count; r++)
	{
		best[r] = V_SET1(INFINITY);
		at[r] = V_LANE_NUMBERS;
	}
	for (int column = 0; column < NV_PQ_CENTROIDS; column += NV_PANEL_COLUMNS)
	{
		NV_UNROLL
		for (int r = 0; r < count; r++)
			NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			acc[r][v] = V_LOAD(half_norms + column + v * LANES);
		KERNEL(tile)
		(rows, stride, depth, panels + (size_t) column * depth, count, true,
		 acc);
		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
		{
			vi number = V_NUMBERS_FROM(column + v * LANES);

			NV_UNROLL
			for (int r = 0; r < count; r++)
				V_KEEP_LESS(best[r], at[r], acc[r][v], number);
		}
	}
	NV_UNROLL
	for (int r = 0; r < count; r++)
	{
		float least = V_MINIMUM(best[r]);

		codes[r * code_stride] = (uint8_t) V_FIRST_AT(best[r], least, at[r]);
		if (score != NULL)
			score[r] = least;
	}
}

TARGET static void
KERNEL(nearest)(const float *rows, size_t stride, size_t n, uint32_t depth,
				const float *panels, const float *half_norms, uint8_t *codes,
				size_t code_stride, float *score)
{
	size_t i = 0;

	for (; i + ROWS <= n; i += ROWS)
		KERNEL(nearest_rows)
	(rows + i * stride, stride, depth, panels, half_norms, ROWS,
	 codes + i * code_stride, code_stride, score == NULL ? NULL : score + i);
	for (; i < n; i++)
		KERNEL(nearest_rows)
	(rows + i * stride, stride, depth, panels, half_norms, 1,
	 codes + i * code_stride, code_stride, score == NULL ? NULL : score + i);
}

TARGET static void
KERNEL(distances)(const float *row, uint32_t depth, const float *panels,
				  float *out)
{
	for (int column = 0; column < NV_PQ_CENTROIDS; column += NV_PANEL_COLUMNS)
	{
		const float *panel = panels + (size_t) column * depth;
		vf acc[VECTORS];

		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			acc[v] = V_SET1(0.0f);
		for (uint32_t k = 0; k < depth; k++)
		{
			vf x = V_SET1(row[k]);

			NV_UNROLL
			for (int v = 0; v < VECTORS; v++)
			{
				vf d = V_SUB(x, V_LOAD(panel + (size_t) k * NV_PANEL_COLUMNS +
									   v * LANES));

				acc[v] = V_FMADD(d, d, acc[v]);
			}
		}
		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			V_STORE(out + column + v * LANES, acc[v]);
	}
}

TARGET static inline __attribute__((always_inline)) void
KERNEL(multiply_panel)(const float *rows, size_t stride, uint32_t depth,
					   const float *panel, uint32_t columns, const int count,
					   float *out, size_t out_stride)
{
	float whole[NV_PANEL_COLUMNS];
	vf acc[ROWS][VECTORS];

	NV_UNROLL
	for (int r = 0; r < count; r++)
		NV_UNROLL
	for (int v = 0; v < VECTORS; v++)
		acc[r][v] = V_SET1(0.0f);
	KERNEL(tile)(rows, stride, depth, panel, count, false, acc);
	NV_UNROLL
	for (int r = 0; r < count; r++)
	{
		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			V_STORE(whole + v * LANES, acc[r][v]);
		memcpy(out + r * out_stride, whole, columns * sizeof(float));
	}
}

TARGET static void
KERNEL(multiply)(const float *rows, size_t stride, size_t n, uint32_t depth,
				 const float *panels, uint32_t columns, float *out,
				 size_t out_stride)
{
	/* A panel stays in the cache for all rows of the block. */
	for (uint32_t c = 0; c < columns; c += NV_PANEL_COLUMNS)
	{
		const float *panel = panels + (size_t) c * depth;
		uint32_t width = NV_MIN(columns - c, NV_PANEL_COLUMNS);
		size_t i = 0;

		for (; i + ROWS <= n; i += ROWS)
			KERNEL(multiply_panel)
		(rows + i * stride, stride, depth, panel, width, ROWS,
		 out + i * out_stride + c, out_stride);
		for (; i < n; i++)
			KERNEL(multiply_panel)
		(rows + i * stride, stride, depth, panel, width, 1,
		 out + i * out_stride + c, out_stride);
	}
}

/* Element by element what multiply does with one row. */
TARGET static void
KERNEL(multiply_short)(const float *row, uint32_t depth, const int16_t *panels,
					   uint32_t columns, float *out)
{
	for (uint32_t c = 0; c < columns; c += NV_PANEL_COLUMNS)
	{
		const int16_t *panel = panels + (size_t) c * depth;
		float whole[NV_PANEL_COLUMNS];
		vf acc[VECTORS];

		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			acc[v] = V_SET1(0.0f);
		for (uint32_t k = 0; k < depth; k++)
		{
			vf x = V_SET1(row[k] * NV_SHORT_STEP);

			NV_UNROLL
			for (int v = 0; v < VECTORS; v++)
				acc[v] =
					V_FMADD(x,
							V_LOAD_SHORT(panel + (size_t) k * NV_PANEL_COLUMNS +
										 v * LANES),
							acc[v]);
		}
		NV_UNROLL
		for (int v = 0; v < VECTORS; v++)
			V_STORE(whole + v * LANES, acc[v]);
		memcpy(out + c, whole,
			   NV_MIN(columns - c, NV_PANEL_COLUMNS) * sizeof(float));
	}
}

#undef KERNEL
#undef TARGET
#undef LANES
#undef VECTORS
#undef ROWS
#undef vf
#undef vi
#undef V_LOAD
#undef V_LOAD_SHORT
#undef V_STORE
#undef V_SET1
#undef V_SUB
#undef V_FMADD
#undef V_FNMADD
#undef V_LANE_NUMBERS
#undef V_NUMBERS_FROM
#undef V_KEEP_LESS
#undef V_MINIMUM
#undef V_FIRST_AT
