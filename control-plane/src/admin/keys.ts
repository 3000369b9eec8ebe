import type { Command } from 'commander'
import { createApiKey, revokeApiKey } from '../users/keys.ts'
import type { Admin } from './options.ts'
import { getUser } from './users.ts'

export function addKeyCommands(program: Command, admin: Admin): void {
  const key = program.command('key').description('API keys')

  key
    .command('create')
    .argument('<user>', 'id or name')
    .option('--name <name>', 'what it is for', 'unnamed')
    .description('make a key, which is shown once')
    .action((who: string, options: { name: string }) =>
      admin.run(async ({ db }) => {
        const user = await getUser(db, who)
        const { id, key: secret } = await createApiKey(db, user.id, options.name)
        return { id, user_id: user.id, name: options.name, api_key: secret }
      }),
    )

  key
    .command('list')
    .argument('[user]', 'id or name; all users if absent')
    .description('keys, without their secrets')
    .action((who: string | undefined) =>
      admin.run(async ({ db }) => {
        const user = who === undefined ? undefined : await getUser(db, who)
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
    .argument('<key>', 'id of the key, as `key list` shows it')
    .description('make a key worthless, in every process at once')
    .action((id: string) =>
      admin.run(async ({ db }) => {
        await revokeApiKey(db, id, new Date())
        return { id, revoked: true }
      }),
    )
}
