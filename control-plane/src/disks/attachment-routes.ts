import {
  DiskAttachBody,
  DiskAttachmentView,
  DiskAttachView,
  DiskDetachParams,
  DiskDetachQuery,
  DiskDetachView,
  ok,
  PageQuery,
  page,
  SandboxParams,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { storeResponse } from '../http/idempotency.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { attachDisk } from './attach.ts'
import { detachDisk } from './detach.ts'
import { listAttachments } from './list-attachments.ts'

export function diskAttachmentRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/sandboxes/:id/disks',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'List the disks that are attached to a sandbox, with the status of each mount',
        description:
          '`mount_status` is `pending` until the guest has mounted the disk, then `mounted`, or `failed` with the reason in ' +
          '`mount_error`. A failed mount is tried again when the credentials of the disk change and when the sandbox resumes.',
        tags: ['disk'],
        params: SandboxParams,
        querystring: PageQuery,
        response: { 200: success(page(DiskAttachmentView)) },
      },
    },
    async (request) => ok(await listAttachments(deps, request.sandbox, request.query)),
  )

  app.post(
    '/v1/sandboxes/:id/disks',
    {
      config: { access: 'user', idempotent: true },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Attach a disk to a running sandbox; repeating it changes nothing',
        description:
          'The response does not wait for the mount: list the disks of the sandbox to see its status. One disk can be mounted at ' +
          'several paths. `id` in the response is that of the sandbox.',
        tags: ['disk'],
        params: SandboxParams,
        body: DiskAttachBody,
        response: { 200: success(DiskAttachView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim, sandbox } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = { ok: true as const, id: sandbox.id }
      await attachDisk(deps, sandbox, request.body, async (tx) => {
        if (claim) await storeResponse(tx, claim, 200, render(ok(view)))
      })
      return ok(view)
    },
  )

  app.delete(
    '/v1/sandboxes/:id/disks/:disk_id',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Detach a disk from a sandbox; the bucket and its contents remain',
        description: 'What programs have written is saved in the bucket first. `warning` says what could not be saved.',
        tags: ['disk'],
        params: DiskDetachParams,
        querystring: DiskDetachQuery,
        response: { 200: success(DiskDetachView) },
      },
    },
    async (request) => ok(await detachDisk(deps, request.sandbox, request.params.disk_id, request.query.mount_path)),
  )
}
