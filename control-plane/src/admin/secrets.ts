/** `warren admin secrets`: replaces the key that encrypts secrets in the database. */
import type { Command } from 'commander'
import { rotateSecrets } from '../secrets/rotate.ts'
import type { RunOnDatabase } from './run-on-database.ts'

export function addSecretCommands(admin: Command, runOnDatabase: RunOnDatabase): void {
  const secrets = admin.command('secrets').description('manage the key that encrypts secrets in the database')

  secrets
    .command('rotate')
    .description('replace the key and encrypt every secret again, while Warren runs; safe to repeat')
    .action(() =>
      runOnDatabase(async (database) =>
        rotateSecrets(database, {
          value: process.env.WARREN_SECRETS_KEY ?? '',
          file: process.env.WARREN_SECRETS_KEY_FILE ?? '',
        }),
      ),
    )
}
