/** `warren admin key`: creates, lists and revokes API keys. */
import type { Command } from 'commander'
import { createApiKey, revokeApiKey } from '../users/keys.ts'
import type { RunOnDatabase } from './run-on-database.ts'
import { getUser } from './users.ts'

export function addKeyCommands(admin: Command, runOnDatabase: RunOnDatabase): void {
  const key = admin.command('key').description('manage API keys')

  key
    .command('create')
    .argument('<user>', 'id or name of the user')
    .option('--name <name>', 'what the key is for', 'unnamed')
    .description('create an API key; it is shown only once')
    .action((userRef: string, options: { name: string }) =>
      runOnDatabase(async ({ db }) => {
        const user = await getUser(db, userRef)
        const { id, key: secret } = await createApiKey(db, user.id, options.name)
        return { id, user_id: user.id, name: options.name, api_key: secret }
      }),
    )

  key
    .command('list')
    .argument('[user]', 'id or name of a user; all users by default')
    .description('list API keys, without their secrets')
    .action((userRef: string | undefined) =>
      runOnDatabase(async ({ db }) => {
        const user = userRef === undefined ? undefined : await getUser(db, userRef)
        return db
          .selectFrom('api_keys')
          .select(['id', 'user_id', 'name', 'hint', 'created_at', 'revoked_at'])
          .$if(user !== undefined, (query) => query.where('user_id', '=', user!.id))
          .orderBy('created_at')
          .execute()
      }),
    )

  key
    .command('revoke')
    .argument('<key>', 'id of the key, as printed by `key list`')
    .description('revoke an API key immediately')
    .action((id: string) =>
      runOnDatabase(async ({ db }) => {
        await revokeApiKey(db, id, new Date())
        return { id, revoked: true }
      }),
    )
}
