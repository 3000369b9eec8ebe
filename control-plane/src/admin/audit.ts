/** `warren admin audit`: lists the audit log of all users. */
import { type Command, InvalidArgumentError } from 'commander'
import type { RunOnDatabase } from './run-on-database.ts'
import { getUser } from './users.ts'

type Options = { user?: string; action?: string; target?: string; since?: Date; limit: number }

export function addAuditCommand(admin: Command, runOnDatabase: RunOnDatabase): void {
  admin
    .command('audit')
    .description('list calls that changed something and admin commands, newest first')
    .option('--user <user>', 'only about this user, by id or name')
    .option('--action <action>', 'only this action, such as sandbox.create')
    .option('--target <id>', 'only about this resource, such as a sandbox id')
    .option('--since <time>', 'only from this time on, such as 2026-11-01 or 2026-11-01T12:00:00Z', parseTime)
    .option('--limit <n>', 'number of entries', parseCount, 100)
    .action((options: Options) =>
      runOnDatabase(async ({ db }) => {
        const user = options.user === undefined ? undefined : await getUser(db, options.user)
        const { action, target, since } = options
        return db
          .selectFrom('audit_log')
          .select([
            'at',
            'user_id',
            'actor_kind',
            'actor',
            'credential',
            'action',
            'target',
            'outcome',
            'status',
            'code',
          ])
          .select(['request_id', 'id'])
          .$if(user !== undefined, (query) => query.where('user_id', '=', user!.id))
          .$if(action !== undefined, (query) => query.where('action', '=', action!))
          .$if(target !== undefined, (query) => query.where('target', '=', target!))
          .$if(since !== undefined, (query) => query.where('at', '>=', since!))
          .orderBy('id', 'desc')
          .limit(options.limit)
          .execute()
      }),
    )
}

function parseTime(text: string): Date {
  const time = new Date(text)
  if (Number.isNaN(time.getTime())) throw new InvalidArgumentError('a date or a time, as in RFC 3339.')
  return time
}

function parseCount(text: string): number {
  if (!/^[1-9]\d{0,5}$/.test(text)) throw new InvalidArgumentError('a number from 1 to 999999.')
  return Number(text)
}
