import {
  DiskCreateBody,
  DiskDeleteView,
  DiskParams,
  DiskPatchBody,
  DiskView,
  ok,
  PageQuery,
  page,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { storeResponse } from '../http/idempotency.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { createDisk } from './create.ts'
import { deleteDisk } from './delete.ts'
import { getDisk, listDisks, viewDisk } from './queries.ts'
import { rotateDisk } from './rotate.ts'

export function diskRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/disks',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List disks, newest first',
        tags: ['disk'],
        querystring: PageQuery,
        response: { 200: success(page(DiskView)) },
      },
    },
    async (request) => {
      const { disks, ...counts } = await listDisks(deps, request.caller.user.id, request.query)
      return ok(paged(disks, counts))
    },
  )

  app.post(
    '/v1/disks',
    {
      config: { access: 'user', idempotent: true },
      schema: {
        summary: 'Register a bucket of an S3 store as a disk',
        description:
          'The bucket is checked with these credentials first, for at most 3 seconds. If that fails, the response is 400 and ' +
          'names the field to correct: `config.endpoint`, `config.bucket`, `config.region` or `credentials`. Credentials are ' +
          'encrypted at rest, never returned, and never given to a sandbox.',
        tags: ['disk'],
        body: DiskCreateBody,
        response: { 200: success(DiskView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = await createDisk(deps, request.caller.user, request.body, async (tx, created) => {
        if (claim) await storeResponse(tx, claim, 200, render(ok(created)))
      })
      return ok(view)
    },
  )

  app.get(
    '/v1/disks/:idOrName',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get a disk, by id or name',
        tags: ['disk'],
        params: DiskParams,
        response: { 200: success(DiskView) },
      },
    },
    async (request) => ok(viewDisk(await getDisk(deps.db, request.caller.user.id, request.params.idOrName))),
  )

  app.patch(
    '/v1/disks/:idOrName',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Replace the credentials of a disk',
        description:
          'The bucket is checked with the new credentials first. Running sandboxes use them at once, without unmounting; mounts ' +
          'that had failed are tried again. Paused sandboxes use them when they resume. Check `mount_status` of the attachments ' +
          'afterwards: the response does not wait for every mount.',
        tags: ['disk'],
        params: DiskParams,
        body: DiskPatchBody,
        response: { 200: success(DiskView) },
      },
    },
    async (request) => {
      const { caller, params, body } = request
      return ok(await rotateDisk(deps, caller.user, params.idOrName, body.credentials))
    },
  )

  app.delete(
    '/v1/disks/:idOrName',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Delete a disk that is not attached; the bucket and its contents remain',
        tags: ['disk'],
        params: DiskParams,
        response: { 200: success(DiskDeleteView) },
      },
    },
    async (request) => {
      await deleteDisk(deps, request.caller.user.id, request.params.idOrName)
      return ok({ deleted: true as const })
    },
  )
}
