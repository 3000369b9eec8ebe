/**
 * The commands of `warren admin`: users, plans, credit and API keys. They use the database directly, so they also work
 * while no API runs. Running API processes apply every change immediately, because database triggers notify them.
 */
import { spellCommand } from '@warren/kit/warren-command'
import { Command, Help } from 'commander'
import type { AdminCommand } from '../audit/record-command.ts'
import { addAuditCommand } from './audit.ts'
import { addCreditCommands } from './credit.ts'
import { addKeyCommands } from './keys.ts'
import { addPlanCommand } from './plans.ts'
import { createRunOnDatabase } from './run-on-database.ts'
import { addSecretCommands } from './secrets.ts'
import { addUserCommands } from './users.ts'

export function createAdminCommand(): Command {
  const admin = new Command('warren admin')
    .description('Manage users, plans, credit and API keys')
    .option('--json', 'print the result as JSON')
    .configureHelp({
      showGlobalOptions: true,
      commandUsage: (command) => spellCommand(new Help().commandUsage(command)),
    })
    .showHelpAfterError()
  const isJson = () => admin.opts<{ json?: boolean }>().json ?? false
  let current: AdminCommand = { name: 'unknown', target: undefined }
  admin.hook('preAction', (_admin, command) => {
    const parent = command.parent === admin ? '' : `${command.parent?.name()} `
    current = { name: `${parent}${command.name()}`, target: command.args[0] }
  })
  const runOnDatabase = createRunOnDatabase(isJson, () => current)
  addUserCommands(admin, runOnDatabase)
  addKeyCommands(admin, runOnDatabase)
  addPlanCommand(admin, isJson)
  addSecretCommands(admin, runOnDatabase)
  addAuditCommand(admin, runOnDatabase)
  addCreditCommands(admin, runOnDatabase)
  return admin
}
