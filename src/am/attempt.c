/*
 * attempt.c
 *		What may fail without failing the statement: a subtransaction around it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "navis.h"

/* Cancel, shutdown and exhausted resources are the session's business. */
static bool
is_about_session(int code)
{
	int category = ERRCODE_TO_CATEGORY(code);

	return category == ERRCODE_OPERATOR_INTERVENTION ||
		   category == ERRCODE_INSUFFICIENT_RESOURCES;
}

ErrorData *
navis_attempt(void (*action)(void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		action(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		/* Also before a rethrow: the session's own abort ends one level only.
		 */
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL && is_about_session(error->sqlerrcode))
		ReThrowError(error);
	return error;
}
