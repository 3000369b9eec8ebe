/** Records a command of `warren admin`, with the login of the operator as the actor. */
import { userInfo } from 'node:os'
import { Failure } from '@warren/kit/failure'
import { newId } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'
import { READING_COMMANDS } from './actions.ts'

/** `name` is such as `user set-plan`; `target` its first argument. */
export type AdminCommand = { name: string; target: string | undefined }

export async function recordCommand(db: Db, { name, target = '' }: AdminCommand, error?: unknown): Promise<void> {
  if (READING_COMMANDS.has(name)) return
  const outcome = error === undefined ? 'success' : error instanceof Failure ? 'fail' : 'error'
  const code = error instanceof Failure ? error.code : null
  await sql`insert into audit_log (id, user_id, actor_kind, actor, credential, action, target, outcome, code)
    values (${newId('auditEntry')}, coalesce(
        (select id from users where id = ${target} or name = ${target} limit 1),
        (select user_id from api_keys where id = ${target})),
      'operator', ${loginName()}, 'warren admin', ${`admin.${name.replaceAll(' ', '.')}`}, ${target || null}, ${outcome},
      ${code})`.execute(db)
}

/** The person, if root acts for one. */
function loginName(): string {
  if (process.env.SUDO_USER) return process.env.SUDO_USER
  try {
    return userInfo().username
  } catch {
    return `uid ${process.getuid?.() ?? 'unknown'}` // The user id has no name.
  }
}
